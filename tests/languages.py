"""Lists five ordinary sentences in each of 27 languages."""

import unicodedata

LANGUAGES = {
  "arabic": [
    "ذهبت البنت إلى المدرسة في الصباح.",
    "أحب قراءة الكتب مع أصدقائي في المساء.",
    "المدينة القديمة جميلة، وشوارعها ضيقة.",
    "كَتَبَ الوَلَدُ رِسَالَةً إِلَى أُمِّهِ.",
    "هل تشرب القهوة أم الشاي؟",
  ],
  "hebrew": [
    "הילדה הלכה לבית הספר בבוקר.",
    "אני אוהב לקרוא ספרים עם חברים בערב.",
    "העיר העתיקה יפה והרחובות שלה צרים.",
    "שָׁלוֹם לְכֻלָּם, מַה שְּׁלוֹמְכֶם?",
    "האם אתה שותה קפה או תה?",
  ],
  "hindi": [
    "लड़की सुबह स्कूल गई।",
    "मुझे शाम को दोस्तों के साथ किताबें पढ़ना पसंद है।",
    "पुराना शहर सुंदर है और उसकी गलियाँ तंग हैं।",
    "क्या आप चाय पिएँगे या कॉफ़ी?",
    "बच्चों ने आँगन में पेड़ के नीचे खाना खाया।",
  ],
  "bengali": [
    "মেয়েটি সকালে স্কুলে গিয়েছিল।",
    "আমি সন্ধ্যায় বন্ধুদের সঙ্গে বই পড়তে ভালোবাসি।",
    "পুরনো শহরটি সুন্দর, আর তার রাস্তাগুলি সরু।",
    "আপনি কি চা খাবেন, না কফি?",
    "নদীর ধারে ছোট ছোট নৌকা বাঁধা ছিল।",
  ],
  "tamil": [
    "சிறுமி காலையில் பள்ளிக்குச் சென்றாள்.",
    "மாலையில் நண்பர்களுடன் புத்தகங்கள் படிக்க எனக்குப் பிடிக்கும்.",
    "பழைய நகரம் அழகானது, அதன் தெருக்கள் குறுகியவை.",
    "நீங்கள் தேநீர் குடிக்கிறீர்களா அல்லது காபியா?",
    "மழை பெய்ததால் நாங்கள் வீட்டிலேயே இருந்தோம்.",
  ],
  "thai": [
    "เด็กผู้หญิงไปโรงเรียนตอนเช้า",
    "ฉันชอบอ่านหนังสือกับเพื่อนในตอนเย็น",
    "เมืองเก่าสวยงาม และถนนของมันแคบ",
    "คุณจะดื่มกาแฟหรือชา",
    "น้ำในแม่น้ำใสมากและปลากำลังว่ายน้ำ",
  ],
  "khmer": [
    "ក្មេងស្រីទៅសាលារៀននៅពេលព្រឹក។",
    "ខ្ញុំចូលចិត្តអានសៀវភៅជាមួយមិត្តភក្តិនៅពេលល្ងាច។",
    "ទីក្រុងចាស់ស្អាតណាស់ ហើយផ្លូវតូចចង្អៀត។",
    "តើអ្នកចង់ផឹកតែឬកាហ្វេ?",
    "ផ្ទះរបស់យើងនៅជិតទន្លេ។",
  ],
  "burmese": [
    "မိန်းကလေးသည် မနက်က ကျောင်းသို့ သွားသည်။",
    "ကျွန်တော် ညနေတွင် သူငယ်ချင်းများနှင့် စာအုပ်ဖတ်ရတာ ကြိုက်သည်။",
    "မြို့ဟောင်းသည် လှပပြီး လမ်းများ ကျဉ်းသည်။",
    "ခင်ဗျား လက်ဖက်ရည် သောက်မလား ကော်ဖီ သောက်မလား။",
    "ကျွန်မတို့အိမ်သည် မြစ်နားတွင် ရှိသည်။",
  ],
  "korean": [
    "소녀는 아침에 학교에 갔다.",
    "나는 저녁에 친구들과 책을 읽는 것을 좋아한다.",
    "오래된 도시는 아름답고 골목은 좁다.",
    "커피를 드시겠어요, 아니면 차를 드시겠어요?",
    "선생님은 바다를 보며 오랫동안 앉아 있었다.",
  ],
  "japanese": [
    "女の子は朝、学校へ行きました。",
    "私は夕方に友だちと本を読むのが好きです。",
    "古い町は美しく、道はとても狭いです。",
    "コーヒーを飲みますか、それともお茶にしますか。",
    "ゲームのあとで、ピアノとギターを弾いた。",
  ],
  "chinese": [
    "女孩早上去了学校。",
    "我喜欢晚上和朋友们一起看书。",
    "老城很美,街道很窄。",
    "你想喝咖啡还是喝茶?",
    "我們昨天在河邊散步，天氣很好。",
  ],
  "vietnamese": [
    "Cô bé đi học vào buổi sáng.",
    "Tôi thích đọc sách với bạn bè vào buổi tối.",
    "Thành phố cổ rất đẹp và đường phố thì hẹp.",
    "Bạn muốn uống cà phê hay uống trà?",
    "Mẹ mua cá ở chợ, rồi nấu một nồi canh chua.",
  ],
  "turkish": [
    "Kız sabah okula gitti.",
    "Akşamları arkadaşlarımla kitap okumayı seviyorum.",
    "Eski şehir güzel, sokakları ise dar.",
    "Kahve mi içersiniz, çay mı?",
    "İstanbul'da ılık bir gündü; Işıl çiçek aldı.",
  ],
  "greek": [
    "Το κορίτσι πήγε στο σχολείο το πρωί.",
    "Μου αρέσει να διαβάζω βιβλία με φίλους το βράδυ.",
    "Η παλιά πόλη είναι όμορφη και οι δρόμοι της στενοί.",
    "Θέλετε καφέ ή τσάι;",
    "Ο ΟΔΥΣΣΕΑΣ γύρισε στο σπίτι του ύστερα από χρόνια.",
  ],
  "russian": [
    "Девочка утром пошла в школу.",
    "Я люблю читать книги с друзьями по вечерам.",
    "Старый город красив, а улицы его узкие.",
    "Вы будете кофе или чай?",
    "Ёжик ещё спал, когда мой брат пришёл домой.",
  ],
  "ukrainian": [
    "Дівчинка вранці пішла до школи.",
    "Я люблю читати книжки з друзями вечорами.",
    "Старе місто гарне, а його вулиці вузькі.",
    "Ви питимете каву чи чай?",
    "Її брат приїхав із Києва; ґанок був мокрий від дощу.",
  ],
  "georgian": [
    "გოგონა დილით სკოლაში წავიდა.",
    "მიყვარს საღამოს მეგობრებთან ერთად წიგნების კითხვა.",
    "ძველი ქალაქი ლამაზია, ქუჩები კი ვიწროა.",
    "ყავას დალევთ თუ ჩაის?",
    "ჩვენი სახლი მდინარესთან ახლოს დგას.",
  ],
  "armenian": [
    "Աղջիկը առավոտյան դպրոց գնաց։",
    "Ես սիրում եմ երեկոյան ընկերներիս հետ գրքեր կարդալ։",
    "Հին քաղաքը գեղեցիկ է, իսկ փողոցները նեղ են։",
    "Սո՞ւրճ կխմեք, թե՞ թեյ։",
    "Մեր տունը գետի մոտ է։",
  ],
  "amharic": [
    "ልጅቷ ጠዋት ወደ ትምህርት ቤት ሄደች።",
    "ማታ ከጓደኞቼ ጋር መጽሐፍ ማንበብ እወዳለሁ።",
    "አሮጌው ከተማ ውብ ነው፣ መንገዶቹም ጠባብ ናቸው።",
    "ቡና ትጠጣለህ ወይስ ሻይ?",
    "ቤታችን ከወንዙ አጠገብ ነው።",
  ],
  "persian": [
    "دختر صبح به مدرسه رفت.",
    "من شب‌ها با دوستانم کتاب می‌خوانم.",
    "شهر قدیمی زیباست و خیابان‌هایش باریک‌اند.",
    "چای می‌نوشید یا قهوه؟",
    "خانه‌ی ما نزدیک رودخانه است.",
  ],
  "sinhala": [
    "ගැහැණු ළමයා උදේ පාසලට ගියාය.",
    "මම සවස යහළුවන් සමඟ පොත් කියවීමට කැමතියි.",
    "ශ්‍රී ලංකාව ලස්සන රටකි.",
    "ඔබ තේ බොනවාද, කෝපි බොනවාද?",
    "අපේ ගෙදර ගඟ අසල ය.",
  ],
  "yoruba": [
    "Ọmọbìnrin náà lọ sí ilé ìwé ní òwúrọ̀.",
    "Mo fẹ́ràn láti ka ìwé pẹ̀lú àwọn ọ̀rẹ́ mi ní alẹ́.",
    "Ìlú àtijọ́ náà lẹ́wà, ṣùgbọ́n òpópónà rẹ̀ kò fẹ̀.",
    "Ṣé o máa mu kọfí tàbí tíì?",
    "Ẹ káàárọ̀, ẹ̀yin ọmọ mi.",
  ],
  "polish": [
    "Dziewczynka poszła rano do szkoły.",
    "Lubię wieczorem czytać książki z przyjaciółmi.",
    "Stare miasto jest piękne, a jego ulice są wąskie.",
    "Napijesz się kawy czy herbaty?",
    "Źrebię biegło po łące, a żółw szedł powoli.",
  ],
  "german": [
    "Das Mädchen ging am Morgen in die Schule.",
    "Ich lese abends gern Bücher mit meinen Freunden.",
    "Die alte Stadt ist schön, und ihre Straßen sind eng.",
    "Möchten Sie Kaffee oder Tee?",
    "Über den Flüssen hängen große weiße Wolken.",
  ],
  "french": [
    "La petite fille est allée à l'école ce matin.",
    "J'aime lire des livres avec mes amis le soir.",
    "La vieille ville est belle, et ses rues sont étroites.",
    "Voulez-vous du café ou du thé ?",
    "L'été, le café était fermé ; où êtes-vous allés, garçons ?",
  ],
  "finnish": [
    "Tyttö meni aamulla kouluun.",
    "Luen iltaisin mielelläni kirjoja ystävieni kanssa.",
    "Vanha kaupunki on kaunis, ja sen kadut ovat kapeita.",
    "Otatteko kahvia vai teetä?",
    "Äiti söi mökillä hyvää kalakeittoa yöllä.",
  ],
  "hungarian": [
    "A kislány reggel iskolába ment.",
    "Szeretek este könyveket olvasni a barátaimmal.",
    "A régi város szép, az utcái pedig szűkek.",
    "Kávét vagy teát kér?",
    "Őszi esők után nagyobb lett a tó, és hűvös szél fújt.",
  ],
}
# The sentences that Unicode's form NFD changes, in that form: an accent is a
# separate character, and a Korean syllable is split into its letters.
LINES_BY_DECOMPOSED_LANGUAGE = {
  f"{name}, decomposed": [
    unicodedata.normalize("NFD", line)
    for line in lines
    if not unicodedata.is_normalized("NFD", line)
  ]
  for name, lines in LANGUAGES.items()
}
TEXTS = LANGUAGES | {
  name: lines for name, lines in LINES_BY_DECOMPOSED_LANGUAGE.items() if lines
}
LINES = [line for lines in TEXTS.values() for line in lines]
